//! Environment variables that configure the devices of a process (docs/reference/environment.md).

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::{KernelOptions, RegistryOptions, UserDirectory};
use crate::error::{InputError, RuntimeError};

impl RegistryOptions {
    /// Reads the environment variables. `engine_candidates` are the possible paths of the engine's library.
    pub fn from_environment(engine_candidates: Vec<PathBuf>) -> Result<Self, RuntimeError> {
        Self::from_variables(&|name| env::var_os(name), engine_candidates)
    }

    fn from_variables(value: &Variables<'_>, engine_candidates: Vec<PathBuf>) -> Result<Self, RuntimeError> {
        let virtual_cards = match text(value, "QAIC_CPU_DEVICES").filter(|found| !found.is_empty()) {
            Some(found) => Some(found.parse().map_err(|_| InputError::VirtualCards { found })?),
            None => None,
        };
        Ok(Self {
            kind: text(value, "QAIC_DEVICE"),
            virtual_cards,
            family: text(value, "QAIC_CPU_FAMILY").map(|family| family.to_lowercase()),
            engine_candidates,
            noop_faults: text(value, "QAIC_NOOP_FAULTS"),
            shared_cores: shared_cores(value)?,
            memory: text(value, "QAIC_CPU_MEMORY").filter(|found| !found.is_empty()),
            visible_devices: text(value, "QAIC_VISIBLE_DEVICES"),
            kernel: kernel(value),
        })
    }
}

/// Path of the engine's library from `QAIC_ONNXRUNTIME_LIB`. If set, no other library may be used.
pub fn named_engine() -> Option<PathBuf> {
    engine(&|name| env::var_os(name))
}

fn engine(value: &Variables<'_>) -> Option<PathBuf> {
    value("QAIC_ONNXRUNTIME_LIB").filter(|path| !path.is_empty()).map(PathBuf::from)
}

impl UserDirectory {
    /// Returns a directory of the user of this process: `path`, or a directory in memory, or one for temporary files.
    pub fn of_this_user(path: Option<PathBuf>) -> Self {
        let user = rustix::process::getuid().as_raw();
        let path = path.unwrap_or_else(|| {
            let memory = Path::new("/dev/shm");
            let base = if memory.is_dir() { memory.to_owned() } else { env::temp_dir() };
            base.join(format!("openqaic-{user}"))
        });
        Self { path, user }
    }
}

/// Values of variables by name.
type Variables<'a> = dyn Fn(&str) -> Option<OsString> + 'a;

/// Reads a variable. Converts invalid text lossily, so that it is refused instead of ignored.
fn text(value: &Variables<'_>, name: &str) -> Option<String> {
    value(name).map(|found| found.to_string_lossy().trim().to_owned())
}

/// Returns the folder in which the cores of this user are counted; `1` selects the default folder.
fn shared_cores(value: &Variables<'_>) -> Result<Option<UserDirectory>, RuntimeError> {
    let Some(found) = value("QAIC_CPU_SHARED").filter(|found| !found.is_empty() && found != "0") else {
        return Ok(None);
    };
    let directory = UserDirectory::of_this_user((found != "1").then(|| PathBuf::from(&found)));
    if directory.path.is_absolute() {
        return Ok(Some(directory));
    }
    Err(InputError::SharedCores { found: found.display().to_string() }.into())
}

/// Returns the source of cards.
fn kernel(value: &Variables<'_>) -> KernelOptions {
    let given = |name| text(value, name).filter(|found| !found.is_empty());
    // The explicit name of the default kernel gives the same devices as the default.
    let kernel = given("QAIC_KMD").filter(|kernel| kernel != "sys");
    let is_emulated = kernel.as_deref() == Some("emu");
    // Variables without an effect are ignored, so that the devices stay the same.
    let emulated = |name| if is_emulated { given(name) } else { None };
    KernelOptions {
        transcript: value("QAIC_KMD_TRANSCRIPT").filter(|path| !path.is_empty()).map(PathBuf::from),
        emulated_profile: emulated("QAIC_EMU_PROFILE"),
        emulated_faults: emulated("QAIC_EMU_FAULTS"),
        emulated_workload: emulated("QAIC_EMU_WORKLOAD"),
        emulated_time: emulated("QAIC_EMU_TIME"),
        kernel,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn options(variables: &[(&str, &str)]) -> Result<RegistryOptions, RuntimeError> {
        let find =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        RegistryOptions::from_variables(&find, Vec::new())
    }

    #[test]
    fn without_variables_everything_is_as_usual() {
        assert_eq!(options(&[]).unwrap(), RegistryOptions::default());
        let empty = [("QAIC_CPU_DEVICES", " "), ("QAIC_CPU_SHARED", ""), ("QAIC_KMD", " ")];
        assert_eq!(options(&empty).unwrap(), RegistryOptions::default());
        let named = [("QAIC_CPU_SHARED", "0"), ("QAIC_KMD", "sys"), ("QAIC_KMD_TRANSCRIPT", "")];
        assert_eq!(options(&named).unwrap(), RegistryOptions::default());
    }

    #[test]
    fn engine_is_named_by_a_path_as_it_is() {
        let named = |found: &'static str| {
            engine(&|name: &str| (name == "QAIC_ONNXRUNTIME_LIB").then(|| OsString::from(found)))
        };
        assert_eq!(named(""), None);
        assert_eq!(named(" /opt/my engine.so").as_deref(), Some(Path::new(" /opt/my engine.so")));
        assert_eq!(engine(&|_| None), None);
    }

    #[test]
    fn values_are_trimmed() {
        let found =
            options(&[("QAIC_DEVICE", " cpu "), ("QAIC_CPU_DEVICES", " 4\n"), ("QAIC_CPU_FAMILY", "AI200")]);
        let found = found.unwrap();
        assert_eq!((found.kind.as_deref(), found.virtual_cards), (Some("cpu"), Some(4)));
        assert_eq!(found.family.as_deref(), Some("ai200"));
    }

    #[test]
    fn a_number_of_cards_that_is_none_is_refused() {
        for value in ["many", "-1", "1.5", "4294967296"] {
            let refusal = options(&[("QAIC_CPU_DEVICES", value)]).unwrap_err();
            assert_eq!(refusal.code(), "option.cpu_devices");
            assert!(refusal.to_string().contains(&format!("{value:?}")), "{refusal}");
        }
    }

    #[test]
    fn cores_are_shared_at_the_usual_place_or_an_absolute_one() {
        let place =
            |value| options(&[("QAIC_CPU_SHARED", value)]).map(|found| found.shared_cores.unwrap().path);
        assert_eq!(place("1").unwrap(), UserDirectory::of_this_user(None).path);
        assert_eq!(place("/run/cores").unwrap(), Path::new("/run/cores"));
        assert_eq!(place("cores").unwrap_err().code(), "option.cpu_shared");
    }

    #[test]
    fn variables_of_the_emulator_count_with_it_only() {
        let variables = [("QAIC_EMU_PROFILE", "old"), ("QAIC_EMU_TIME", "virtual")];
        assert_eq!(options(&variables).unwrap(), RegistryOptions::default());
        let emulated = options(&[variables[0], variables[1], ("QAIC_KMD", "emu")]).unwrap().kernel;
        assert_eq!(emulated.emulated_profile.as_deref(), Some("old"));
        assert_eq!(emulated.emulated_time.as_deref(), Some("virtual"));
    }

    #[test]
    fn a_value_that_is_no_text_is_refused_and_not_passed_over() {
        let broken = |name: &str| (name == "QAIC_CPU_DEVICES").then(|| OsString::from_vec(vec![b'4', 0xff]));
        assert!(RegistryOptions::from_variables(&broken, Vec::new()).is_err());
    }
}
