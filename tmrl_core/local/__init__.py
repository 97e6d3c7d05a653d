"""All roles on one machine: child processes or threads, supervision and the summary of a run."""
