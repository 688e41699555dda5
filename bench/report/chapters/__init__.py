"""The chapters of a report: each makes one section from what was measured, and says what was not."""
