"""Words for the friendly names of nodes: 64 adjectives and 64 animals, in an order that must never change."""

from __future__ import annotations

_ADJECTIVES = """
able agile airy amber ample apt ardent balmy bold brave bright brisk calm candid careful cheery clever cosy
crisp curious daring deft eager early earnest fair fleet fond frank gentle glad golden grand happy hardy honest
humble jolly keen kind lively loyal lucid mellow merry mild nimble noble patient placid plucky polite proud quick
quiet ready robust sage serene silver steady sunny tidy witty
"""
_ANIMALS = """
alpaca ant badger bat bear beaver bee bison bream camel cat cod crane crow deer dolphin dove duck eagle eel elk
falcon ferret finch fox frog gecko goose hare hawk heron horse ibex jay koala lark lemur lion llama lynx magpie
marten mole moose newt otter owl panda pony puffin quail rabbit raven robin salmon seal snail stork swan tapir
toad trout wolf wren
"""

ADJECTIVES = tuple(_ADJECTIVES.split())
ANIMALS = tuple(_ANIMALS.split())
