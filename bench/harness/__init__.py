"""Code that all benchmarks share: commands, child processes, rounds, statistics, frame accounting, tables and JSON output.

Start with `comparison`.
"""
