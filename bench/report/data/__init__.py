"""What a report shows, read from the files of runs and studies.

Start with `subject`.
"""
