"""ML-Decoder (Ridnik et al. 2021): fixed class queries attend over the tokens of an image."""

from math import ceil

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from percentmatch.models.heads.base import Head


class MLDecoder(Head):
    """Tokens (n, t, d) -> logits (n, c).

    One decoder layer without self-attention. The q queries are random and never learnt; each answers for
    `ceil(c / q)` neighbouring classes through its own small linear layer.
    """

    reads = "tokens"

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        embed_dim: int = 768,
        num_queries: int = 100,
        num_heads: int = 8,
        ffn_dim: int = 2048,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        num_queries = min(num_queries, num_classes)
        self.num_classes = num_classes
        self.classes_per_query = ceil(num_classes / num_queries)
        self.embed = nn.Linear(in_features, embed_dim)
        self.queries: Tensor
        self.register_buffer("queries", torch.randn(num_queries, embed_dim))  # (q, e)
        self.attention = nn.MultiheadAttention(embed_dim, num_heads, dropout=dropout, batch_first=True)
        self.expand = nn.Linear(embed_dim, ffn_dim)
        self.contract = nn.Linear(ffn_dim, embed_dim)
        self.query_norm, self.attention_norm, self.ffn_norm = (nn.LayerNorm(embed_dim) for _ in range(3))
        self.dropout = nn.Dropout(dropout)
        self.group_weight = nn.Parameter(torch.empty(num_queries, embed_dim, self.classes_per_query))  # (q, e, k)
        self.group_bias = nn.Parameter(torch.zeros(num_classes))
        nn.init.xavier_normal_(self.group_weight)

    @property
    def bias(self) -> Tensor:
        return self.group_bias  # (c,)

    def forward(self, features: Tensor) -> Tensor:
        memory = F.relu(self.embed(features))  # (n, t, e)
        query = self.queries.expand(features.shape[0], -1, -1)  # (n, q, e)
        query = self.query_norm(query + self.dropout(query))  # in place of self-attention
        attended, _ = self.attention(query, memory, memory, need_weights=False)
        query = self.attention_norm(query + self.dropout(attended))
        hidden = self.dropout(F.relu(self.expand(query)))  # (n, q, ffn_dim)
        query = self.ffn_norm(query + self.dropout(self.contract(hidden)))
        grouped = torch.einsum("nqe,qek->nqk", query, self.group_weight)  # class i: query i // k, column i % k
        return grouped.flatten(1)[:, : self.num_classes] + self.group_bias  # (n, c)
