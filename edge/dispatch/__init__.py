"""Dispatch: which worker gets a frame.

Start with `dispatcher`, the contract and the table; `load_dispatcher` chooses by the loads that workers report.
"""
