"""What goes on in the server: a page for people, metrics for Prometheus."""
