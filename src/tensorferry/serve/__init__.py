"""The prediction server: a folder of models answers the Open Inference Protocol over REST and gRPC.

One data plane (`dataplane.py`) knows what the server can do; `rest/` and `rpc/` only translate. A model is a folder; its
runtime is loaded when the first model needs it.
"""
