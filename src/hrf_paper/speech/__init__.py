"""The paper's speech model, a Conformer-Transducer whose attention takes any `hrf` map.

utterances, alphabet, audio    recordings and transcripts; characters; files and log-mel energies
an4, librispeech, digits       corpora
augment, batches               variations for training; padded batches
attention, conformer, configs  self-attention with exchangeable methods; the encoder; sizes
transducer, rnnt               the model; its loss
methods                        attention methods by name, fitted to a model
decoding, beam                 greedy decoding and error rates; beam search
training                       trainings that resume bit by bit
command                        ``hrf-speech``: train, and transcribe recordings
"""

from hrf_paper.speech.beam import Hypothesis, beam_search
from hrf_paper.speech.configs import CONFIGS, ModelConfig
from hrf_paper.speech.decoding import error_rates, greedy, recognised
from hrf_paper.speech.methods import METHODS, install
from hrf_paper.speech.rnnt import rnnt_loss
from hrf_paper.speech.training import SpeechTrainer, SpeechTraining, TrainedModel, load_model
from hrf_paper.speech.transducer import ConformerTransducer
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
]
