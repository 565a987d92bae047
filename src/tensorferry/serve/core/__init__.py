"""What every protocol asks: the data plane, and behind it the repository, models, their schedulers, and limits."""
