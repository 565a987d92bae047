"""The prediction server: a folder of models answers the Open Inference Protocol over REST and gRPC.

`core/` knows what the server can do and no protocol; `rest/` and `grpc/` only translate; `runtimes/` run a model's file, each
loaded when the first model needs it; `page/` shows what goes on, to people and to Prometheus. `server.py` starts it all.
"""
