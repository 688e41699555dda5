"""Dispatch: which worker gets a frame, and which frames are sent a second time.

Start with `dispatcher`, the contract and the table; `load_dispatcher` chooses by the loads that workers report.
"""
