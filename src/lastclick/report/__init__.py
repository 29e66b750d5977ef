"""The report of a run: one page that leads with the answer and shows every table and figure."""
