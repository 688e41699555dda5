"""Studies: their plan (axes, scenarios, cells, order of runs), and their results (measurements, validity, tables).

Start with `study_plan` and `study_folder`; `ops.study` runs them.
"""
