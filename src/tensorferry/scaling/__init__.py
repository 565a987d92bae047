"""From one process to many: who is in a training, how it is split, and how its processes are started and started again."""
