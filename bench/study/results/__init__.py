"""The results of a study: measurements, validity, tables and the study's folder.

Start with `folder`.
"""
