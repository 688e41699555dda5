"""The report of a run, of several, or of a study: one HTML file, its tables and its figures."""
