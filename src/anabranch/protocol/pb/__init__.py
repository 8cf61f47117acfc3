"""The wire's messages, generated from `pulsar.proto` by `tools/generate_proto.py`.

Only protobuf's C backend will do: the pure Python one is some fifty times slower, which would show up as a
slow broker rather than as an error.
"""

from __future__ import annotations

from google.protobuf.internal import api_implementation

if api_implementation.Type() == "python":
    raise ImportError(
        "Anabranch needs protobuf's C backend (upb), but protobuf runs in pure Python here. Install a protobuf "
        "wheel for this platform and unset PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION."
    )
