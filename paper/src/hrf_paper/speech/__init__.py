"""The paper's speech model, a Conformer-Transducer whose attention takes any `hrf` map.

utterances  characters, transcripts and features; joining, microphones and variations; padded batches
audio       recordings from files, log-mel energies, and those of a recording that is still going on
corpora     AN4, spoken digits, LibriSpeech
conformer   sizes; dropout by random bytes; self-attention with exchangeable methods; the encoder
transducer  the joiner over the lattice, the loss, the model
decoding    greedy decoding and error rates; beam search; recognition of a recording that is still going on
methods     attention methods by name, fitted to a model; a picture of their weights
training    trainings that resume bit by bit; models and maps in checkpoints
command     ``hrf-speech``: train, transcribe recordings, draw attention
"""

from hrf_paper.speech.conformer import CONFIGS, ModelConfig
from hrf_paper.speech.decoding import Hypothesis, beam_search, error_rates, greedy, recognised, searched
from hrf_paper.speech.methods import METHODS, install
from hrf_paper.speech.training import SpeechTrainer, SpeechTraining, TrainedModel, load_model
from hrf_paper.speech.transducer import ConformerTransducer, rnnt_loss
from hrf_paper.speech.utterances import Speech, Utterance

__all__ = [
    "CONFIGS",
    "METHODS",
    "ConformerTransducer",
    "Hypothesis",
    "ModelConfig",
    "Speech",
    "SpeechTrainer",
    "SpeechTraining",
    "TrainedModel",
    "Utterance",
    "beam_search",
    "error_rates",
    "greedy",
    "install",
    "load_model",
    "recognised",
    "rnnt_loss",
    "searched",
]
