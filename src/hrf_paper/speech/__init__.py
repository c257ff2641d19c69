"""The paper's speech model, a Conformer-Transducer whose attention takes any `hrf` map."""
