"""Evaluation of the paper: experiments, their data, and the pages that show the results."""
