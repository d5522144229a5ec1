"""Tuning beside upstream's MetaSchedule: trials a minute, and the best so far against trials and seconds."""
