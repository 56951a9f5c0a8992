//! Candidate paths of the engine's library.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the library files in the folder of an installed package, the longest version first.
pub fn libraries_of_package(package: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(package.join("capi")) else { return Vec::new() };
    let is_library = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name == "libonnxruntime.so" || name.starts_with("libonnxruntime.so."))
    };
    let mut found: Vec<_> = entries.flatten().map(|entry| entry.path()).filter(is_library).collect();
    found.sort_by_key(|path| std::cmp::Reverse(path.as_os_str().len()));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_with_the_longest_version_comes_first() {
        let package = std::env::temp_dir().join(format!("openqaic-candidates-{}", std::process::id()));
        let folder = package.join("capi");
        fs::create_dir_all(&folder).unwrap();
        for name in
            ["libonnxruntime.so.1.22", "libonnxruntime.so", "libonnxruntime_providers_shared.so", "x.py"]
        {
            fs::write(folder.join(name), "").unwrap();
        }
        let found = libraries_of_package(&package);
        fs::remove_dir_all(&package).unwrap();
        assert_eq!(found, ["libonnxruntime.so.1.22", "libonnxruntime.so"].map(|name| folder.join(name)));
        assert_eq!(libraries_of_package(&package), Vec::<PathBuf>::new());
    }
}
