"""The parts of a report: each turns figures into sentences, tables and charts."""
