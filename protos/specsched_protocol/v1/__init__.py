"""Generated from the .proto files beside them by `make protos`."""
