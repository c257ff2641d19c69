"""The paper's speech model, a Conformer-Transducer whose attention takes any `hrf` map.

utterances, alphabet, audio    recordings and transcripts; characters; files and log-mel energies
an4, librispeech, digits       corpora
augment, microphones, batches  variations for training; a microphone per utterance; padded batches
attention, conformer, configs  self-attention with exchangeable methods; the encoder; sizes
transducer, joiner, rnnt       the model; its joiner over the lattice; its loss
methods, attention_map         attention methods by name, fitted to a model; a picture of their weights
decoding, beam                 greedy decoding and error rates; beam search
running_features, streaming    features and recognition of a recording that is still going on
training, dropout              trainings that resume bit by bit; dropout by random bytes
trained_model, map_files       models and maps in checkpoints
command                        ``hrf-speech``: train, transcribe recordings, draw attention
"""

from hrf_paper.speech.beam import Hypothesis, beam_search, searched
from hrf_paper.speech.configs import CONFIGS, ModelConfig
from hrf_paper.speech.decoding import error_rates, greedy, recognised
from hrf_paper.speech.methods import METHODS, install
from hrf_paper.speech.rnnt import rnnt_loss
from hrf_paper.speech.trained_model import TrainedModel, load_model
from hrf_paper.speech.training import SpeechTrainer, SpeechTraining
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
    "searched",
]
