"""Decisions under uncertainty: influence diagrams, their best policies, and two sides of expected utility."""
