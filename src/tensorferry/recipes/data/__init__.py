"""What recipes train on: readers of a user's files, and the data that recipes bring."""
