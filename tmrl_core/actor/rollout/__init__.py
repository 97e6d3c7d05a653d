"""Collection: the parts of a worker, its schedule with three rules, and the class that composes them."""

# Theory of operation
#
# A worker is composed of parts, none of which reads another's private attributes.
#
#     CheckedEnvironment   makes the environment, checks its results, makes it again after a failed reset
#     PolicyRunner         owns the acting state: actor, generator, state of each row
#     StepRecorder         makes samples and episode records of steps, whichever code makes the steps
#     EnvironmentLoop      the three above, step by step and episode by episode
#     Uplink               the link: sends samples, receives policies, directives and the end of the run
#     Schedule, rules      episode after episode, while a rule says that the next step may be taken
#     Worker               all of them; `RolloutWorker` (roles/) derives from it and reads the configuration
#
# The recorder owns no loop and knows neither environment nor policy. A program that steps the environment by itself
# calls `begin`, `step` and `end`, so rooms with environments of their own record with it too. One recorder records one
# episode at a time; several share the ids of episodes, so that no two episodes of a stream have the same one.
