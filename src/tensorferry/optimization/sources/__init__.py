"""Where models come from: one file a framework. Each turns a model into a `Source`."""
