"""`fused_attention` for a compiled model: torch.compile does not trace it, and breaks the graph.

Imported only while torch.compile traces: the decorator imports torch._dynamo, which would double the time of `bertsmith.load`.
"""

import torch

from .attention import fused_attention as _fused_attention

fused_attention = torch.compiler.disable(_fused_attention)
