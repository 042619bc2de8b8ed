"""A language model small enough to read: embed, add positions, bend, project."""

import torch
from torch import nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from .configuration_standin import StandInConfig
from .standin_layers import bend


class StandInForCausalLM(PreTrainedModel, GenerationMixin):
    """One layer."""

    config_class = StandInConfig
    base_model_prefix = "model"

    def __init__(self, config):
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.width)
        self.position = nn.Embedding(config.max_position_embeddings, config.width)
        self.project = nn.Linear(config.width, config.vocab_size)
        self.post_init()

    def _init_weights(self, module):
        if isinstance(module, nn.Embedding | nn.Linear):
            nn.init.normal_(module.weight)

    def forward(self, input_ids, **kwargs):
        """Return logits."""
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        return CausalLMOutput(logits=self.project(bend(self.embed(input_ids) + self.position(positions))))
