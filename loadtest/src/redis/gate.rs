//! The figures of whole lives that the repository keeps, and what is above them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use super::server::Redis;

/// A life may cost this much more than the repository says: measurements of one build differ by up to 2 %.
const TOLERANCE: f64 = 1.03;

/// A kind of life, and the thousands of instructions of Redis for one.
pub struct Counted {
    pub life: String,
    pub instructions: f64,
}

/// The figures of a file.
#[derive(Debug)]
pub struct Gate {
    path: PathBuf,
    most: BTreeMap<String, f64>,
}

impl Gate {
    /// Reads the figures. Those of another version of Redis say nothing of this one, and are an error.
    pub fn read(path: &Path, redis: &Redis) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("{} has no figures", path.display()))?;
        Self::parse(path, &text, &redis.version()?)
    }

    fn parse(path: &Path, text: &str, version: &str) -> Result<Self> {
        let of_path = || format!("{} has no figures of instructions", path.display());
        let stored: Value = serde_json::from_str(text).with_context(of_path)?;
        let measured = stored["redis"].as_str().with_context(of_path)?;
        ensure!(
            measured == version,
            "{} has figures of {measured}, and this is {version}: write those of this version with --write",
            path.display()
        );
        let rows = stored["thousands_of_instructions"].as_object().with_context(of_path)?;
        let most = rows.iter().map(|(life, most)| Ok((life.clone(), most.as_f64().with_context(of_path)?)));
        Ok(Self { path: path.to_owned(), most: most.collect::<Result<_>>()? })
    }

    /// Writes figures.
    pub fn write(path: &Path, redis: &Redis, counted: &[Counted]) -> Result<()> {
        let rows: BTreeMap<&str, i64> =
            counted.iter().map(|row| (&*row.life, row.instructions.round() as i64)).collect();
        let stored = json!({"redis": redis.version()?, "thousands_of_instructions": rows});
        Ok(fs::write(path, serde_json::to_string_pretty(&stored)? + "\n")?)
    }

    /// Prints each life beside its figure, and fails if one is missing or too far above it.
    pub fn judge(&self, counted: &[Counted]) -> Result<()> {
        let mut dearer = Vec::new();
        for Counted { life, instructions } in counted {
            let Some(most) = self.most.get(life) else {
                bail!("{} has no figure for {life}: write it with --write", self.path.display());
            };
            let ratio = instructions / most;
            println!("{life}: {instructions:.0} thousand instructions, {ratio:.3} of {most:.0}");
            if ratio > TOLERANCE {
                dearer.push(format!("{life} takes {:.1} % more", (ratio - 1.0) * 100.0));
            }
        }
        ensure!(
            dearer.is_empty(),
            "{} than {} says; make it cheaper, or write the new figures with --write and say in the commit what they buy",
            dearer.join(", "),
            self.path.display()
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORED: &str = r#"{"redis": "Redis 7.0.15", "thousands_of_instructions": {"plain": 1000, "shaped": 2000}}"#;

    fn parse(text: &str) -> Result<Gate> {
        Gate::parse(Path::new("figures.json"), text, "Redis 7.0.15")
    }

    fn counted(rows: &[(&str, f64)]) -> Vec<Counted> {
        rows.iter()
            .map(|(life, instructions)| Counted { life: (*life).to_owned(), instructions: *instructions })
            .collect()
    }

    #[test]
    fn a_life_may_cost_three_percent_more_and_not_four() {
        let gate = parse(STORED).expect("figures");
        gate.judge(&counted(&[("plain", 1_029.0), ("shaped", 1_500.0)])).expect("within the tolerance");
        let refused = gate.judge(&counted(&[("plain", 1_040.0), ("shaped", 2_000.0)])).expect_err("4 %").to_string();
        assert!(refused.contains("plain takes 4.0 % more") && !refused.contains("shaped"), "{refused}");
    }

    #[test]
    fn figures_that_are_missing_or_of_another_version_do_not_pass() {
        let missing = parse(STORED).expect("figures").judge(&counted(&[("ttl", 1.0)])).expect_err("no figure");
        assert!(missing.to_string().contains("no figure for ttl"), "{missing}");
        let other = STORED.replace("7.0.15", "8.2.3");
        assert!(parse(&other).expect_err("another version").to_string().contains("figures of Redis 8.2.3"));
        for broken in ["", "{}", r#"{"redis": "Redis 7.0.15"}"#, &STORED.replace("1000", "\"x\"")] {
            parse(broken).expect_err(broken);
        }
    }
}
