"""From times to a verdict: contrasts, intervals, the rule, and what a campaign can detect."""
