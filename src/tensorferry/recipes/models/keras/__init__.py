"""Models in Keras 3, each in a file of its own, for any back end that ferry drives."""
