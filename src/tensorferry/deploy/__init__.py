"""Files for Kubernetes, checked before they leave: a chart for a folder of models, and what is wrong with any chart.

`files/` holds what is written: `chart/` as it is, the rest filled in with what is known of the models. `check/` reads a chart
or a folder of manifests as a cluster would. Nothing here talks to a cluster.
"""
