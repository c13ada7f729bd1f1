"""`specsched top`: what an executor and its schedulers do now, at each moment anew.

`feed` reads both processes through gRPC, `frame` makes figures of two readings, `view` draws them.
"""
