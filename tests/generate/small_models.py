"""Small models and prompts for the tests of the sampling engines."""

from __future__ import annotations

import string
from pathlib import Path

import torch
from torch import Tensor, nn

from ftis_node.records import ChatMessage, Prompt, SampledGroup
from ftis_protocol.rollout import PromptRef

SPECIAL = ("<pad>", "<bos>", "<eos>")
EOS_ID = 2


def small_llama(*, vocabulary: int, tied: bool, seed: int, hidden: int = 128, heads: int = 4) -> nn.Module:
    """A random model whose distributions are far from uniform, so that a mistake shows. Heads of 32, as vLLM needs."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        initializer_range=0.1,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=EOS_ID,
    )
    return LlamaForCausalLM(config).eval()


def write_checkpoint(path: Path, *, tied: bool, seed: int, hidden: int = 128, heads: int = 4) -> Path:
    """An ordinary Hugging Face checkpoint with a tokenizer of single characters. Its generation settings are a trap:
    an engine that obeyed them would sample from three tokens only."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import GenerationConfig, PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate((*SPECIAL, *sorted(string.printable)))}
    characters = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    characters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    characters.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=characters, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", model_max_length=512
    )
    tokenizer.save_pretrained(path)
    model = small_llama(vocabulary=len(vocabulary), tied=tied, seed=seed, hidden=hidden, heads=heads)
    model.generation_config = GenerationConfig(do_sample=True, top_k=3, temperature=0.3, eos_token_id=EOS_ID)
    model.save_pretrained(path)
    return path


def load_module(path: Path) -> nn.Module:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def ask(text: str, *, max_tokens: int = 12, stop: str | None = None, index: int = 0) -> Prompt:
    ref = PromptRef(task="toy", version=1, slot=0, index=index)
    return Prompt(ref, "", text, (ChatMessage("user", text),), "", stop, max_tokens)


def teacher_forced(module: nn.Module, prompt_ids: tuple[int, ...], completion_ids: tuple[int, ...]) -> Tensor:
    """Log-probs [C] of the completion, from one plain forward pass over everything."""
    with torch.no_grad():
        logits = module(input_ids=torch.tensor([prompt_ids + completion_ids])).logits[0].float()
    logprobs = logits.log_softmax(-1)[len(prompt_ids) - 1 : -1]
    return logprobs.gather(-1, torch.tensor(completion_ids)[:, None])[:, 0]


def worst_difference(module: nn.Module, groups: tuple[SampledGroup, ...]) -> float:
    """Largest difference in nats between the recorded and the teacher-forced log-probs."""
    return max(
        float((teacher_forced(module, group.prompt_ids, s.token_ids) - torch.tensor(s.logprobs)).abs().max())
        for group in groups
        for s in group.samples
    )
