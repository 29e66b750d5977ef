"""GRU4Rec: a gated recurrent unit, trained to predict the next item at every position.

Hidasi et al., "Session-based Recommendations with Recurrent Neural Networks", ICLR 2016, as the
later comparisons train it: on whole sequences, with cross-entropy over the whole catalogue. The
output vectors are the item embeddings (tied weights), so the state is as wide as an embedding.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils.rnn import PackedSequence

from lastclick.data.sequences import Batch
from lastclick.fields import Count, Number
from lastclick.models.base import ModelConfig, Recommender, refuse_residual_scale
from lastclick.models.layers import Dropout, gather_rows

INITIAL_STD = 0.02


class Config(ModelConfig):
    """Sizes and choices of one GRU4Rec.

    ``dropout`` acts on the item embeddings that enter the network and between its layers.
    ``max_length`` bounds memory and time only: a recurrent network has no positions.
    """

    hidden_size: Count
    n_layers: Count
    dropout: Number = Field(ge=0, lt=1)
    max_length: Count


class Model(Recommender):
    """See the module's docstring."""

    def __init__(self, config: Config, n_items: int):
        super().__init__()
        self.config = config
        self.n_items = n_items
        self.max_length = config.max_length
        self.item_embedding = nn.Embedding(n_items + 1, config.hidden_size, padding_idx=0)
        self.dropout = Dropout(config.dropout)
        self.gru = nn.GRU(
            config.hidden_size,
            config.hidden_size,
            config.n_layers,
            dropout=config.dropout if config.n_layers > 1 else 0.0,
        )
        with torch.no_grad():
            nn.init.normal_(self.item_embedding.weight, std=INITIAL_STD)
            self.item_embedding.weight[0].zero_()

    def encode(
        self,
        batch: Batch,
        *,
        residual_scale: float | Tensor = 1.0,
        capture: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """The state after every item; captures ``embedded``, the vectors that enter the network."""
        refuse_residual_scale(self, residual_scale)
        embedded = self.dropout(self.item_embedding(batch.items))
        if capture is not None:
            capture["embedded"] = embedded
        order, inverse = _time_major_order(batch)
        n_running = torch.bincount(batch.positions).cpu()  # sequences that reach each time
        x = gather_rows(embedded, order, inverse)
        states = self._states_by_torch(x, n_running) if x.is_cuda else self._states(x, n_running)
        return gather_rows(states, inverse, order)

    def _states_by_torch(self, x: Tensor, n_running: Tensor) -> Tensor:
        return self.gru(PackedSequence(x, n_running))[0].data

    def _states(self, x: Tensor, n_running: Tensor) -> Tensor:
        """The same, in the order of time ``(n_tokens, hidden_size)``, for a CPU.

        There the gradient of torch's packed form costs tokens x times, and this costs tokens.
        """
        for layer in range(self.config.n_layers):
            input_weight, weight, input_bias, bias = self.gru.all_weights[layer]
            if layer > 0:
                x = self.dropout(x)
            x = _Recurrence.apply(F.linear(x, input_weight, input_bias), weight, bias, n_running)
        return x

    def item_vectors(self) -> Tensor:
        return self.item_embedding.weight


def _time_major_order(batch: Batch) -> tuple[Tensor, Tensor]:
    """The tokens' order in a PackedSequence, and its inverse, both ``(n_tokens,)``.

    All first tokens come first, then all second ones, …, and at each time the longest sequence
    first: so the network advances every sequence that is still running at once, without padding.
    """
    longest_first = torch.argsort(batch.lengths, descending=True, stable=True)
    rank = torch.empty_like(longest_first)
    rank[longest_first] = torch.arange(batch.n_sequences, device=rank.device)
    order = torch.argsort(batch.positions * batch.n_sequences + rank[batch.sequence])
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(batch.n_tokens, device=order.device)
    return order, inverse


class _Recurrence(torch.autograd.Function):
    """The part of a GRU layer that has to go through time step by step.

    With the gates' share of the input x (r, z, n side by side), for each step, as ``nn.GRU``:
        u = W h + b;  r = sigmoid(x_r + u_r);  z = sigmoid(x_z + u_z);  n = tanh(x_n + r u_n)
        h' = (1 - z) n + z h
    Backwards, all that a step's gradient is multiplied with is known beforehand for all steps, so
    that the way back takes one product per step, and the weights' gradient one for all of them.
    """

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, n_running: Tensor) -> Tensor:
        size = weight.shape[1]
        times = n_running.tolist()
        gates = x.clone()  # becomes r, z, n
        u = torch.empty_like(x)
        before = x.new_zeros(len(x), size)  # h
        states = x.new_empty(len(x), size)  # h'
        h = x.new_zeros(times[0], size)
        steps = [part.split(times) for part in (gates, u, before, states)]
        for gates_now, u_now, before_now, states_now in zip(*steps, strict=True):
            h = before_now.copy_(h[: len(u_now)])
            torch.addmm(bias, h, weight.T, out=u_now)
            r_and_z, n = gates_now.tensor_split([2 * size], dim=1)
            u_of_r_and_z, u_of_n = u_now.tensor_split([2 * size], dim=1)
            r, z = r_and_z.add_(u_of_r_and_z).sigmoid_().chunk(2, dim=1)
            n.addcmul_(r, u_of_n).tanh_()
            h = torch.lerp(n, h, z, out=states_now)
        ctx.save_for_backward(gates, u[:, 2 * size :], before, weight)
        ctx.times = times
        return states

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        gates, u_n, before, weight = ctx.saved_tensors
        r, z, n = gates.chunk(3, dim=1)
        # Derivatives of h' by what is inside each gate, and of that by u.
        by_n = (1 - z) * (1 - n * n)
        by_z = (before - n) * z * (1 - z)
        by_r = by_n * u_n * r * (1 - r)
        by_u = torch.stack((by_r, by_z, by_n * r), dim=1)  # (n_tokens, 3, hidden_size)
        grad = grad.clone()
        grad_u = torch.empty_like(by_u)
        steps = [part.split(ctx.times) for part in (grad, by_u, grad_u, z)]
        later = grad[:0]
        for now, by_u_now, grad_u_now, z_now in reversed(list(zip(*steps, strict=True))):
            now[: len(later)] += later
            torch.mul(now[:, None], by_u_now, out=grad_u_now)
            later = torch.addmm(now * z_now, grad_u_now.flatten(1), weight)
        grad_u = grad_u.flatten(1)
        grad_x = torch.cat((grad_u[:, : 2 * n.shape[1]], grad * by_n), dim=1)
        return grad_x, grad_u.T @ before, grad_u.sum(0), None
