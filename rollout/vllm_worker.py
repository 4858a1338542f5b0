"""What runs inside vLLM's worker: replacing the weights in place, and reading them back. See `worker_extension_cls`.

Shape suffixes: `O` output features (or vocabulary), `I` input features, `C` columns read back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

COLUMNS = 4
"""Columns of each matrix that are read back."""


class WeightLoader:
    """Methods added to vLLM's worker class; reached through `collective_rpc`."""

    model_runner: Any

    def load_hf_weights(self, weights: Mapping[str, torch.Tensor], probe: int) -> tuple[int, list[str]]:
        """Load by Hugging Face names. Return how many were read back, and which do not hold what was sent.

        `reload_weights` and not `model.load_weights`: the CPU build packs matrices into another layout after
        loading and drops the originals, so a plain load writes into empty tensors. `probe` varies the columns
        that are read back.
        """
        import torch

        model = self.model_runner.get_model()
        with torch.no_grad():
            self.model_runner.reload_weights(weights_iterator=iter(weights.items()))
            repack_tied_head(model)
            read = list(read_back(model, weights, probe))
        return len(read), [name for name, same in read if not same]


def repack_tied_head(model: torch.nn.Module) -> None:
    """Pack a head that is tied to the embedding again: `reload_weights` (vLLM 0.32) passes it by, because the
    checkpoint has no weight of its own for it, and on CPU it would go on with the packed copy of the old one."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    heads: list[Any] = []
    embeddings: list[Any] = []
    for module in model.modules():
        if isinstance(module, ParallelLMHead):  # itself a VocabParallelEmbedding
            heads.append(module)
        elif isinstance(module, VocabParallelEmbedding):
            embeddings.append(module)
    storages = {embedding.weight.data_ptr() for embedding in embeddings}
    for head in heads:
        if head.weight.data_ptr() in storages:
            head.quant_method.process_weights_after_loading(head)


def read_back(
    model: torch.nn.Module, weights: Mapping[str, torch.Tensor], probe: int
) -> Iterator[tuple[str, bool]]:
    """Yield (name, holds what was sent) for every weight of this rank that can be read back exactly.

    A packed matrix is read through its own kernel: multiplied by one-hot vectors, it gives columns of the
    weight without rounding. Shards of a tensor-parallel rank are passed by.
    """
    import torch

    parts: Mapping[str, list[str]] = getattr(model, "packed_modules_mapping", {})
    named: list[tuple[str, Any]] = list(model.named_modules())
    for path, module in named:
        parent, _, last = path.rpartition(".")
        names = [f"{parent}.{part}".lstrip(".") + ".weight" for part in parts.get(last, [last])]
        if last == "lm_head" and names[0] not in weights:
            names = ["model.embed_tokens.weight"]  # tied
        if not all(name in weights for name in names):
            continue
        sent = [weights[name] for name in names]
        method = getattr(module, "quant_method", None)
        if last == "embed_tokens" or method is None or sent[0].dim() != 2:
            held = getattr(module, "weight", None)
            if held is None or held.dim() != sent[0].dim() or held.shape[0] < sent[0].shape[0]:
                continue
            held = held[: sent[0].shape[0]]  # vLLM pads the vocabulary at the end
            if held.shape == sent[0].shape:
                yield names[0], torch.equal(held, sent[0].to(held.device, held.dtype))
            continue
        norm = next(p for p in model.parameters() if p.numel())
        width = sent[0].shape[1]
        columns = [(probe * 7919 + c * width // COLUMNS) % width for c in range(COLUMNS)]
        one_hot_CI = torch.zeros(COLUMNS, width, device=norm.device, dtype=norm.dtype)
        one_hot_CI[range(COLUMNS), columns] = 1
        expected_OC = torch.cat([matrix[:, columns].to(norm.device, norm.dtype) for matrix in sent])
        got_CO = method.apply(module, one_hot_CI, None)
        if got_CO.shape[1] < expected_OC.shape[0] or (
            len(names) > 1 and got_CO.shape[1] != expected_OC.shape[0]
        ):
            continue
        yield " + ".join(names), torch.equal(got_CO[:, : expected_OC.shape[0]].T, expected_OC)
