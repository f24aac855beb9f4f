"""Two revisions or two interpreters side by side: fresh process pairs, paired ratios, verdicts with error rates."""
