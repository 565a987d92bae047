"""Models to train, each in a file of its own; a framework is loaded only by the file that needs it."""
