"""A gRPC server and client without generated code; both get what they need from the control plane.

    python greeter.py serve v1 127.0.0.1:50051
    python greeter.py call xds:///greeter:9000 100 [header=value ...]

Needs grpcio, and GRPC_XDS_BOOTSTRAP=bootstrap.json in the environment.
"""

import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import grpc

METHOD = "/greeter.Greeter/Hello"


class Greeter(grpc.GenericRpcHandler):
    def __init__(self, name):
        self.name = name

    def service(self, call):
        if call.method != METHOD:
            return None
        return grpc.unary_unary_rpc_method_handler(lambda request, context: self.name.encode())


def serve(name, address):
    server = grpc.server(ThreadPoolExecutor(), handlers=(Greeter(name),), xds=True)
    # TLS where the control plane says so, else plaintext.
    server.add_secure_port(address, grpc.xds_server_credentials(grpc.insecure_server_credentials()))
    server.start()
    server.wait_for_termination()


def call(target, count, *headers):
    metadata = [tuple(header.split("=", 1)) for header in headers]
    with grpc.insecure_channel(target) as channel:
        hello = channel.unary_unary(METHOD)
        answers = Counter()
        for _ in range(int(count)):
            try:
                answers[hello(b"", metadata=metadata, timeout=20).decode()] += 1
            except grpc.RpcError as error:
                answers[f"{error.code().name}: {error.details()}"] += 1
    for answer, times in answers.most_common():
        print(times, answer)


if __name__ == "__main__":
    {"serve": serve, "call": call}[sys.argv[1]](*sys.argv[2:])
