"""The smallest client: python examples/call.py IMAGE FILE [ADDRESS]; prints the answer's resource list."""

from __future__ import annotations

import sys
from pathlib import Path

import grpc

from krm_runner.rpc._generated.evaluator_pb2 import EvaluateFunctionRequest, EvaluateFunctionResponse


def main(image: str, file: str, address: str = "localhost:9445") -> int:
    """Call a function once."""
    request = EvaluateFunctionRequest(image=image, resource_list=Path(file).read_bytes())
    with grpc.insecure_channel(address) as channel:
        evaluate = channel.unary_unary(
            "/evaluator.FunctionEvaluator/EvaluateFunction",
            request_serializer=EvaluateFunctionRequest.SerializeToString,
            response_deserializer=EvaluateFunctionResponse.FromString,
        )
        try:
            response = evaluate(request, timeout=60)
        except grpc.RpcError as error:
            sys.stderr.write(f"{error.code().name}: {error.details()}\n")
            return 1
    sys.stderr.buffer.write(response.log)
    sys.stdout.buffer.write(response.resource_list)
    return 0


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
