"""The evaluation of the paper: experiments, their data, and the pages that show what they found."""
