"""What the runs of a study gave: measurements, validity, tables.

Start with `folder`.
"""
