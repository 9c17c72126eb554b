"""Frames → something to look at: the planner's page and its charts. Views compute nothing that a table does not say."""
