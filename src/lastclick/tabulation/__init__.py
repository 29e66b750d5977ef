"""From the findings of single cells to the tables, metric files and plot data of a run."""
