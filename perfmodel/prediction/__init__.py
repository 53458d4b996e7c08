"""Prediction: a scenario goes in, an answer with its reasons comes out."""
