"""What was measured, as plain data: statistics, the rows of tables, and summaries."""
