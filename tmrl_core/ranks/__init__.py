"""Room: one learner on several processes, one rank for each Server of the run."""
